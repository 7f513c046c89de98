cat > solution.py <<'EOF'
def fizz(*args):
    return 'fizz'
EOF
