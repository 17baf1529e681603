package s3bench

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const httpTime = "Mon, 02 Jan 2006 15:04:05 GMT"

// A request holds the parts of an HTTP request that the server uses.
type request struct {
	method, bucket, key        string
	query                      url.Values
	length                     int64
	from, to                   int64 // of a range; to < 0: until the end
	ranged                     bool
	ifMatch, ifNone            string
	md5, sha256                string // base64
	objectHeader               []byte // header lines that reads of the object return
	chunked                    bool   // signed in chunks
	expectContinue, closeAfter bool   // of the headers Expect and Connection
}

// A conn is a connection. It is used by one goroutine.
type conn struct {
	s       *server
	net     net.Conn
	in      *bufio.Reader
	header  []byte // of the response
	size    int    // of its body
	body    []byte
	buffers net.Buffers
}

// maxBody bounds the body of a request, in bytes.
const maxBody = 64 << 20

// errRequest means that a request is malformed or not supported.
var errRequest = errors.New("malformed request")

// serve handles requests until the client closes the connection.
func (c *conn) serve() {
	for {
		r, err := c.readRequest()
		if err != nil {
			return
		}
		if r.expectContinue {
			if _, err := c.net.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
				return
			}
		}
		body, err := c.readBody(r)
		if err != nil {
			return
		}
		c.header, c.body, c.size = c.header[:0], nil, 0
		c.handle(r, body)
		if r.method == "HEAD" {
			c.body = nil
		}
		c.buffers = append(c.buffers[:0], c.header, c.body)
		send := c.buffers
		if _, err := send.WriteTo(c.net); err != nil || r.closeAfter {
			return
		}
	}
}

func (c *conn) readRequest() (r *request, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	method, rest, _ := bytes.Cut(line, []byte(" "))
	target, _, ok := bytes.Cut(rest, []byte(" "))
	if !ok {
		return nil, errRequest
	}
	path, query, _ := strings.Cut(string(target), "?")
	r = &request{method: string(method), to: -1}
	if r.query, err = url.ParseQuery(query); err != nil {
		return nil, err
	}
	if path, err = url.PathUnescape(strings.TrimPrefix(path, "/")); err != nil {
		return nil, err
	}
	r.bucket, r.key, _ = strings.Cut(path, "/")
	for {
		if line, err = c.in.ReadSlice('\n'); err != nil {
			return nil, err
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return r, nil
		}
		if err := r.header(name, bytes.TrimSpace(value), line); err != nil {
			return nil, err
		}
	}
}

// header parses one header line.
func (r *request) header(name, value, line []byte) (err error) {
	var room [64]byte
	lower := append(room[:0], name...)
	for i, b := range lower {
		if 'A' <= b && b <= 'Z' {
			lower[i] = b + 'a' - 'A'
		}
	}
	switch string(lower) {
	case "content-length":
		r.length, err = strconv.ParseInt(string(value), 10, 64)
	case "range":
		from, to, ok := strings.Cut(strings.TrimPrefix(string(value), "bytes="), "-")
		if r.ranged = ok; !ok {
			return errRequest
		}
		if r.from, err = strconv.ParseInt(from, 10, 64); err == nil && to != "" {
			r.to, err = strconv.ParseInt(to, 10, 64)
		}
		if err == nil && to != "" && r.to < r.from {
			return errRequest
		}
	case "if-match":
		r.ifMatch = strings.Trim(string(value), `"`)
	case "if-none-match":
		r.ifNone = string(value)
	case "content-md5":
		r.md5 = string(value)
	case "x-amz-content-sha256":
		r.chunked = bytes.HasPrefix(value, []byte("STREAMING-"))
	case "expect":
		r.expectContinue = true
	case "connection":
		r.closeAfter = bytes.EqualFold(value, []byte("close"))
	case "content-type":
		r.objectHeader = append(r.objectHeader, line...)
	case "transfer-encoding":
		return errRequest
	default:
		if bytes.HasPrefix(lower, []byte("x-amz-meta-")) || isChecksum(lower) {
			r.objectHeader = append(r.objectHeader, line...)
		}
		if string(lower) == "x-amz-checksum-sha256" {
			r.sha256 = string(value)
		}
	}
	return err
}

// isChecksum reports whether a header is a checksum that reads return.
func isChecksum(name []byte) bool {
	kind, ok := bytes.CutPrefix(name, []byte("x-amz-checksum-"))
	return ok && (string(kind) == "sha256" || string(kind) == "crc64nvme")
}

// readBody reads the body of a request.
func (c *conn) readBody(r *request) ([]byte, error) {
	if r.chunked {
		return c.readChunks()
	}
	switch {
	case r.length == 0:
		return nil, nil
	case r.length < 0, r.length > maxBody:
		return nil, errRequest
	}
	b := make([]byte, r.length)
	_, err := io.ReadFull(c.in, b)
	return b, err
}

// readChunks reads a body with a streaming signature, and its trailer.
func (c *conn) readChunks() (all []byte, err error) {
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		text, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(text, 16, 32)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		if n < 0 || int64(len(all))+n > maxBody {
			return nil, errRequest
		}
		at := len(all)
		all = append(all, make([]byte, n)...)
		if _, err := io.ReadFull(c.in, all[at:]); err != nil {
			return nil, err
		}
		if _, err := c.in.Discard(2); err != nil {
			return nil, err
		}
	}
	for {
		if line, err := c.in.ReadSlice('\n'); err != nil || len(bytes.TrimSpace(line)) == 0 {
			return all, err
		}
	}
}

// startHeader starts the header of a response with a body of size bytes. endHeader ends it.
func (c *conn) startHeader(status string, size int) {
	c.header = append(c.header, "HTTP/1.1 "...)
	c.header = append(c.header, status...)
	c.header = append(c.header, "\r\nServer: s3bench\r\nDate: "...)
	c.header = time.Now().UTC().AppendFormat(c.header, httpTime)
	c.header = append(c.header, "\r\nContent-Length: "...)
	c.header = strconv.AppendInt(c.header, int64(size), 10)
	c.header = append(c.header, "\r\n"...)
}

func (c *conn) endHeader() { c.header = append(c.header, "\r\n"...) }
