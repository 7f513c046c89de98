cat > solution.py <<'EOF'
def total(numbers):
    return sum(numbers)
EOF
