cat > solution.py <<'EOF'
def count(items, colour):
    return items.count(colour)
EOF
