package schemas

import "strings"

// Key joins parts to a key, each escaped so that no two lists of parts share a key.
func Key(parts ...string) string {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte('/')
		}
		for {
			n := strings.IndexAny(p, "%/")
			if n < 0 {
				break
			}
			b.WriteString(p[:n])
			if p[n] == '%' {
				b.WriteString("%25")
			} else {
				b.WriteString("%2F")
			}
			p = p[n+1:]
		}
		b.WriteString(p)
	}
	return b.String()
}

// ItemKey is the partition key of all that concerns one item, in whichever store.
func ItemKey(account, space, item string) string { return Key(account, space, item) }

// String is the copy's key.
func (c Copy) String() string { return Key(c.Account, c.Store, c.Space, c.Item) }
