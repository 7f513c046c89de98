cat > solution.py <<'EOF'
def reverse_string(s):
    return s[::-1]
EOF
