package storagetest

import "io"

// FailingReader returns a reader of the first n bytes of r that then fails with err. If r is shorter, it
// fails at the end of r.
func FailingReader(r io.Reader, n int, err error) io.Reader {
	return &failingReader{io.LimitReader(r, int64(n)), err}
}

type failingReader struct {
	r   io.Reader
	err error
}

func (f *failingReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err == io.EOF {
		err = f.err
	}
	return n, err
}
