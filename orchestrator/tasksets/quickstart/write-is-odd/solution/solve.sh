cat > solution.py <<'EOF'
def is_odd(n):
    return n % 2 == 1
EOF
