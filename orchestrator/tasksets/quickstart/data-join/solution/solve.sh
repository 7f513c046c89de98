cat > solution.py <<'EOF'
def join_words(words):
    return ",".join(words)
EOF
