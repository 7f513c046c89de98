cat > solution.py <<'EOF'
def is_palindrome(text):
    return text == text[::-1]
EOF
