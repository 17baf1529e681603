package s3test

import (
	"net/http"
	"time"
)

// A tier is the storage tier of an object, with the state of its restoration.
type tier struct {
	class         string    // GLACIER, for example; empty: not archived
	restoring     bool      // a restoration was requested
	restoredUntil time.Time // zero: not restored
}

var invalidState = &failure{403, "InvalidObjectState"}

// archived reports whether the object must be restored before it can be read.
func (t tier) archived() bool { return t.class != "" && t.restoredUntil.IsZero() }

// writeHeaders writes the headers of HEAD and GET for the tier.
func (t tier) writeHeaders(w http.ResponseWriter) {
	if t.class == "" {
		return
	}
	w.Header().Set("X-Amz-Storage-Class", t.class)
	switch {
	case !t.restoredUntil.IsZero():
		expiry := t.restoredUntil.UTC().Format(http.TimeFormat)
		w.Header().Set("X-Amz-Restore", `ongoing-request="false", expiry-date="`+expiry+`"`)
	case t.restoring:
		w.Header().Set("X-Amz-Restore", `ongoing-request="true"`)
	}
}

// Archive moves an object to an archive tier.
func (s *Server) Archive(bucket, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buckets[bucket].current(key).tier = tier{class: "GLACIER"}
}

// CompleteRestore completes the restoration of an object. It returns false if none was requested.
func (s *Server) CompleteRestore(bucket, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.buckets[bucket].current(key)
	if !o.tier.restoring {
		return false
	}
	o.tier.restoredUntil = s.now().Add(7 * 24 * time.Hour)
	return true
}

// restore implements RestoreObject.
func (s *Server) restore(w http.ResponseWriter, bk *bucket, key string) *failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := bk.current(key)
	switch {
	case o == nil:
		return noKey
	case o.tier.class == "":
		return invalidState
	case !o.tier.restoredUntil.IsZero():
		return nil
	case o.tier.restoring:
		return &failure{409, "RestoreAlreadyInProgress"}
	}
	o.tier.restoring = true
	w.WriteHeader(http.StatusAccepted)
	return nil
}
