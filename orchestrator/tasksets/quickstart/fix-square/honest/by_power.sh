cat > solution.py <<'EOF'
def square(n):
    return n ** 2
EOF
