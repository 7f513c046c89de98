cat > solution.py <<'EOF'
def names(people):
    return [person["name"] for person in people]
EOF
