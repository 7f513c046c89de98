cat > solution.py <<'EOF'
def count_words(text):
    return len(text.split())
EOF
