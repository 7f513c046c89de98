cat > solution.py <<'EOF'
def difference(a, b):
    return a - b
EOF
