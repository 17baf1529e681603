package schedule

// A fifo is a queue in a ring buffer that grows as needed.
type fifo[T any] struct {
	ring  []T
	first int
	n     int
}

func (f *fifo[T]) len() int { return f.n }

func (f *fifo[T]) push(v T) {
	if f.n == len(f.ring) {
		grown := make([]T, max(8, 2*len(f.ring)))
		copied := copy(grown, f.ring[f.first:])
		copy(grown[copied:], f.ring[:f.first])
		f.ring, f.first = grown, 0
	}
	f.ring[(f.first+f.n)&(len(f.ring)-1)] = v
	f.n++
}

// peek returns the oldest element. There must be one.
func (f *fifo[T]) peek() T { return f.ring[f.first] }

// pop removes and returns the oldest element. There must be one.
func (f *fifo[T]) pop() T {
	var none T
	v := f.ring[f.first]
	f.ring[f.first] = none
	f.first = (f.first + 1) & (len(f.ring) - 1)
	f.n--
	return v
}
