package match

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
)

// A LocationSet is a set of locations. It takes an eighth of a byte for each offset of the pages that have one. The
// zero value is empty.
type LocationSet struct{ pages map[page]*offsets }

// A page is a range of 65,536 offsets of one partition.
type page struct {
	incarnation uint32
	partition   uint16
	high        uint64
}

// offsets is a bitmap of the lower 16 bits of the offsets in one page.
type offsets [1 << 10]uint64

func pageOf(at Location) page { return page{at.Incarnation, at.Partition, at.Offset >> 16} }

// Add adds a location.
func (p *LocationSet) Add(at Location) {
	if p.pages == nil {
		p.pages = map[page]*offsets{}
	}
	o := p.pages[pageOf(at)]
	if o == nil {
		o = new(offsets)
		p.pages[pageOf(at)] = o
	}
	low := uint16(at.Offset)
	o[low>>6] |= 1 << (low & 63)
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
		for i, word := range p.pages[k] {
			for ; word != 0; word &= word - 1 {
				off := k.high<<16 | uint64(i<<6|bits.TrailingZeros64(word))
				if any && open.Incarnation == k.incarnation && open.Partition == k.partition && open.Last+1 == off {
					open.Last = off
					continue
				}
				end()
				open, any = Range{k.incarnation, k.partition, off, off}, true
			}
		}
	}
	end()
	return ranges, more
}

// Has reports whether a location is in the set.
func (p *LocationSet) Has(at Location) bool {
	o, low := p.pages[pageOf(at)], uint16(at.Offset)
	return o != nil && o[low>>6]&(1<<(low&63)) != 0
}
