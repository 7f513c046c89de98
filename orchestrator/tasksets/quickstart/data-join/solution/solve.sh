cat > solution.py <<'EOF'
def join(words):
    return ",".join(words)
EOF
