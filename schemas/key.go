package schemas

import "strings"

// Key joins parts with slashes. It escapes each part, so that different lists of parts have different keys.
func Key(parts ...string) string {
	var stack [256]byte
	b := stack[:0]
	for i, p := range parts {
		if i > 0 {
			b = append(b, '/')
		}
		from := 0
		for at := range len(p) {
			switch p[at] {
			case '%':
				b = append(append(b, p[from:at]...), "%25"...)
				from = at + 1
			case '/':
				b = append(append(b, p[from:at]...), "%2F"...)
				from = at + 1
			}
		}
		b = append(b, p[from:]...)
	}
	return string(b)
}

// SplitKey returns the parts of a Key.
func SplitKey(key string) []string {
	parts := strings.Split(key, "/")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(strings.ReplaceAll(p, "%2F", "/"), "%25", "%")
	}
	return parts
}

// ItemKey returns the partition key of all messages about one item. It does not depend on the store.
func ItemKey(account, space, item string) string { return Key(account, space, item) }
