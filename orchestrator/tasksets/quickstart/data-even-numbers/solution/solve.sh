cat > solution.py <<'EOF'
def evens(numbers):
    return [n for n in numbers if n % 2 == 0]
EOF
