cat > solution.py <<'EOF'
def square(n):
    return n * n
EOF
