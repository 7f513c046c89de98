"""The marks by which an overlay's folders say what they hide."""

OPAQUE_XATTR = "user.overlay.opaque"
