cat > solution.py <<'EOF'
def reverse(text):
    return text[::-1]
EOF
