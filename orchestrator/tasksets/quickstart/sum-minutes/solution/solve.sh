cat > solution.py <<'EOF'
def minutes(hours):
    return hours * 60
EOF
