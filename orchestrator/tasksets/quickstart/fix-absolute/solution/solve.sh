cat > solution.py <<'EOF'
def absolute(n):
    return -n if n < 0 else n
EOF
