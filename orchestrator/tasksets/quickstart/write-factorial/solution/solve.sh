cat > solution.py <<'EOF'
def factorial(n):
    product = 1
    for i in range(2, n + 1):
        product *= i
    return product
EOF
