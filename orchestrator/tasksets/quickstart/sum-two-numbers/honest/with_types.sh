cat > solution.py <<'EOF'
def add(a: int, b: int) -> int:
    total = a
    total += b
    return total
EOF
