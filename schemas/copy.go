package schemas

import pb "github.com/millrace/millrace/schemas/millrace/v1"

// A Copy names one item in one store.
type Copy struct {
	Account, Store, Space, Item string
}

// A CopyBody is a message about one copy.
type CopyBody interface {
	GetAccount() string
	GetStore() string
	GetSpace() string
	GetItem() string
}

// CopyOf returns the copy that a message is about.
func CopyOf(m CopyBody) Copy {
	return Copy{Account: m.GetAccount(), Store: m.GetStore(), Space: m.GetSpace(), Item: m.GetItem()}
}

// CopiesOf returns the copies at the source and at the destination of a message about a pair of stores.
func CopiesOf(m interface {
	GetAccount() string
	GetSourceStore() string
	GetDestinationStore() string
	GetSpace() string
	GetItem() string
}) (source, destination Copy) {
	source = Copy{Account: m.GetAccount(), Store: m.GetSourceStore(), Space: m.GetSpace(), Item: m.GetItem()}
	return source, source.In(m.GetDestinationStore())
}

// String returns the key of the copy.
func (c Copy) String() string { return Key(c.Account, c.Store, c.Space, c.Item) }

// In returns the copy of the same item in another store.
func (c Copy) In(store string) Copy {
	c.Store = store
	return c
}

// WithoutItem returns the space of c: a copy without an item.
func (c Copy) WithoutItem() Copy {
	c.Item = ""
	return c
}

// A KnownCopy is a copy with its record.
type KnownCopy struct {
	Copy
	Record *pb.CopyRecord
}
