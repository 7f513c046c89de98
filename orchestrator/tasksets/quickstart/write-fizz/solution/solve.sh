cat > solution.py <<'EOF'
def fizz(n):
    return "fizz" if n % 3 == 0 else ""
EOF
