cat > solution.py <<'EOF'
def reverse(text):
    out = ""
    for letter in text:
        out = letter + out
    return out
EOF
