cat > solution.py <<'EOF'
def greet(name):
    return "Hello, " + name + "!"
EOF
