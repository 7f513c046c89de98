cat > solution.py <<'EOF'
def fahrenheit(celsius):
    return celsius * 9 / 5 + 32
EOF
