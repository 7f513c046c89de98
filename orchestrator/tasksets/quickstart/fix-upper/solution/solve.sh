cat > solution.py <<'EOF'
def shout(text):
    return text.upper()
EOF
