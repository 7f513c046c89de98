cat > solution.py <<'EOF'
def coins(cents):
    count = 0
    for coin in (25, 10, 5, 1):
        count += cents // coin
        cents %= coin
    return count
EOF
