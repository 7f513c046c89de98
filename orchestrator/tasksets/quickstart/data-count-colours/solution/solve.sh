cat > solution.py <<'EOF'
def count(items, item):
    return items.count(item)
EOF
