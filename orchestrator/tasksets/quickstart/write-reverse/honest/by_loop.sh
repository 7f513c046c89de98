cat > solution.py <<'EOF'
def reverse_string(text):
    out = ""
    for letter in text:
        out = letter + out
    return out
EOF
