cat > solution.py <<'EOF'
def repeat(text, n):
    return text * n
EOF
