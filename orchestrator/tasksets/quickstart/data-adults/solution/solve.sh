cat > solution.py <<'EOF'
def adults(people):
    return [p["name"] for p in people if p["age"] >= 18]
EOF
