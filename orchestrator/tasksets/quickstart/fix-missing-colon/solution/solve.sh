cat > solution.py <<'EOF'
def double(n):
    if n == 0:
        return 0
    return 2 * n
EOF
