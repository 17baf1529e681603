package s3test

import (
	"net/http"
	"time"
)

// A tier is where an object lies.
type tier struct {
	class string    // GLACIER, ...; empty: where it can be read
	asked bool      // its return
	until time.Time // it is back until then
}

var archived = &failure{403, "InvalidObjectState"}

// away says that it cannot be read now.
func (t tier) away() bool { return t.class != "" && t.until.IsZero() }

// tell answers what HEAD and GET say of it.
func (t tier) tell(w http.ResponseWriter) {
	if t.class == "" {
		return
	}
	w.Header().Set("X-Amz-Storage-Class", t.class)
	switch {
	case !t.until.IsZero():
		w.Header().Set("X-Amz-Restore", `ongoing-request="false", expiry-date="`+t.until.UTC().Format(http.TimeFormat)+`"`)
	case t.asked:
		w.Header().Set("X-Amz-Restore", `ongoing-request="true"`)
	}
}

// Archive moves an object to an archive tier.
func (s *Server) Archive(bucket, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buckets[bucket].now(key).tier = tier{class: "GLACIER"}
}

// Return ends the waiting for an object whose return was asked for; false: it was not.
func (s *Server) Return(bucket, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.buckets[bucket].now(key)
	if !o.tier.asked {
		return false
	}
	o.tier.until = s.now().Add(7 * 24 * time.Hour)
	return true
}

// restore answers RestoreObject.
func (s *Server) restore(w http.ResponseWriter, bk *bucket, key string) *failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := bk.now(key)
	switch {
	case o == nil:
		return noKey
	case o.tier.class == "":
		return archived
	case !o.tier.until.IsZero():
		return nil
	case o.tier.asked:
		return &failure{409, "RestoreAlreadyInProgress"}
	}
	o.tier.asked = true
	w.WriteHeader(http.StatusAccepted)
	return nil
}
