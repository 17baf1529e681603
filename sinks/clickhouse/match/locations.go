package match

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
)

// A LocationSet is a set of locations. A location takes two bytes, or an eighth of a byte if there are many in its
// page. The zero value is empty.
type LocationSet struct{ pages map[page]*offsets }

// A page is a range of 65,536 offsets of one partition.
type page struct {
	incarnation uint32
	partition   uint16
	high        uint64
}

// offsets holds the lower 16 bits of the offsets in one page.
type offsets struct {
	list   []uint16
	bitmap *[1 << 10]uint64 // replaces list if it would be too long
}

// bitmapThreshold is the number of offsets from which on a bitmap takes less memory than a list.
const bitmapThreshold = 4096

// Add adds a location.
func (p *LocationSet) Add(at Location) {
	if p.pages == nil {
		p.pages = map[page]*offsets{}
	}
	key := page{at.Incarnation, at.Partition, at.Offset >> 16}
	o := p.pages[key]
	if o == nil {
		o = new(offsets)
		p.pages[key] = o
	}
	o.add(uint16(at.Offset))
}

func (o *offsets) add(low uint16) {
	if o.bitmap == nil {
		if o.list = append(o.list, low); len(o.list) < bitmapThreshold {
			return
		}
		o.bitmap = new([1 << 10]uint64)
		for _, l := range o.list {
			o.bitmap[l>>6] |= 1 << (l & 63)
		}
		o.list = nil
		return
	}
	o.bitmap[low>>6] |= 1 << (low & 63)
}

// each calls f for each offset of a page, in order.
func (o *offsets) each(f func(low uint16)) {
	if o.bitmap == nil {
		slices.Sort(o.list)
		for _, l := range slices.Compact(o.list) {
			f(l)
		}
		return
	}
	for i, word := range o.bitmap {
		for ; word != 0; word &= word - 1 {
			f(uint16(i<<6 | bits.TrailingZeros64(word)))
		}
	}
}

// A Range is a run of consecutive offsets. First and Last are included.
type Range struct {
	Incarnation uint32 `json:"incarnation"`
	Partition   uint16 `json:"partition"`
	First       uint64 `json:"first"`
	Last        uint64 `json:"last"`
}

// Ranges returns up to limit ranges of the set, in the order of their locations, and the number of further ranges.
func (p *LocationSet) Ranges(limit int) (ranges []Range, more int) {
	var open Range
	any := false
	end := func() {
		switch {
		case !any:
		case len(ranges) < limit:
			ranges = append(ranges, open)
		default:
			more++
		}
	}
	keys := slices.SortedFunc(maps.Keys(p.pages), func(a, b page) int {
		return cmp.Or(cmp.Compare(a.incarnation, b.incarnation), cmp.Compare(a.partition, b.partition),
			cmp.Compare(a.high, b.high))
	})
	for _, k := range keys {
		p.pages[k].each(func(low uint16) {
			off := k.high<<16 | uint64(low)
			if any && open.Incarnation == k.incarnation && open.Partition == k.partition && open.Last+1 == off {
				open.Last = off
				return
			}
			end()
			open, any = Range{k.incarnation, k.partition, off, off}, true
		})
	}
	end()
	return ranges, more
}

// Has reports whether a location is in the set.
func (p *LocationSet) Has(at Location) bool {
	o := p.pages[page{at.Incarnation, at.Partition, at.Offset >> 16}]
	low := uint16(at.Offset)
	switch {
	case o == nil:
		return false
	case o.bitmap != nil:
		return o.bitmap[low>>6]&(1<<(low&63)) != 0
	}
	return slices.Contains(o.list, low)
}
