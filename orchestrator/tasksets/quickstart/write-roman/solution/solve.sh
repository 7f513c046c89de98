cat > solution.py <<'EOF'
def roman(n):
    out = ""
    for value, sign in zip((1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1), "M CM D CD C XC L XL X IX V IV I".split()):
        out += sign * (n // value)
        n %= value
    return out
EOF
