cat > solution.py <<'EOF'
def count_vowels(text):
    return sum(letter in "aeiou" for letter in text)
EOF
