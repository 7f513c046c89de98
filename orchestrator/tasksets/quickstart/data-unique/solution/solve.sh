cat > solution.py <<'EOF'
def unique(items):
    return sorted(set(items))
EOF
