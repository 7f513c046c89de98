cat > solution.py <<'EOF'
def larger(a, b):
    if a > b:
        return a
    return b
EOF
