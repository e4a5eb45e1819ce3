"""Bars as SVG, by plain text: a row a picture, a bar a system, and a line where the target is."""
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 720, 110, 120, 20, 8, 34
COLOURS = {"tarn": "#1f6f8b"}
OTHER, TARGET = "#b8c4cc", "#c0392b"


def bars(title, figures, target=None):
    """`figures` is (name, value, text, spread) for each bar; `target` in the same unit, or None."""
    most = max([value * (1 + spread / 2) for _, value, _, spread in figures] + [target or 0]) or 1
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + len(figures) * (BAR + GAP) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="20" font-weight="bold">{escape(title)}</text>',
    ]
    for n, (name, value, text, spread) in enumerate(figures):
        y = TOP + n * (BAR + GAP)
        long, middle = value * scale, y + BAR / 2
        colour = COLOURS.get(name, OTHER)
        parts.append(f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{max(long, 1):.1f}" height="{BAR}" fill="{colour}"/>')
        if spread:
            low, high = LEFT + long * (1 - spread / 2), LEFT + long * (1 + spread / 2)
            parts.append(f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#333" stroke-width="1.5"/>')
        parts.append(f'<text x="{LEFT + long * (1 + spread / 2) + 6:.1f}" y="{middle + 4}">{escape(text)}</text>')
    if target:
        x = LEFT + target * scale
        parts.append(f'<path d="M{x:.1f} {TOP - 4}V{height - 6}" stroke="{TARGET}" stroke-dasharray="4 3"/>')
    return "\n".join(parts + ["</svg>"]) + "\n"
