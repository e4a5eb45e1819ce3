// Slowstore puts the latency and the limits of a store across a network before one that is near: a reverse proxy for S3
// and GCS. It reads each message's head and hands the body on as it is, so that signatures stay good and little
// processor time is taken. It uses Go's standard library alone.
//
//	slowstore LISTEN UPSTREAM [--first-byte 20ms] [--connection 60e6] [--bucket 100e6]
//	          [--fail-rate 0.01] [--seed 1] [--host NAME]
//
// LISTEN and UPSTREAM are HOST:PORT. --first-byte is the least time from a request's last byte to the first byte of its
// answer; --connection and --bucket are bytes a second, in each direction by itself, of one connection and of all
// connections to one bucket; 0 is no limit. --fail-rate is the share of requests that are answered with "503 SlowDown"
// and not passed on. --host is the name that requests are passed on with; without it, the one they came with, which is
// part of what S3's clients sign. GET /-/counts answers, in JSON, for each bucket and kind of request (its method;
// LIST; DELETE-MANY): requests, bytes up and bytes down; DELETE /-/counts sets them to zero.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// A piece is moved at a time, and waited for: what the lowest limit lets through in as long, within bounds. Smaller
	// ones would take the processor from whom it serves.
	pieceTime          = 4 * time.Millisecond
	pieceMin, pieceMax = 64 << 10, 1 << 20
	// burst is how far a limit may be behind, which makes up for sleeping too long.
	burst  = 10 * time.Millisecond
	header = 64 << 10
	// The answer to a request that is to fail, as S3 words it.
	slowDown = `<?xml version="1.0" encoding="UTF-8"?>` +
		`<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`
)

var (
	firstByte  = flag.Duration("first-byte", 0, "")
	connection = flag.Float64("connection", 0, "")
	bucket     = flag.Float64("bucket", 0, "")
	failRate   = flag.Float64("fail-rate", 0, "")
	host       = flag.String("host", "", "")
	seed       = flag.Int64("seed", 1, "")
)

func main() {
	if len(os.Args) < 3 {
		fail("usage: slowstore LISTEN UPSTREAM [--first-byte D] [--connection RATE] [--bucket RATE] [--fail-rate SHARE]")
	}
	flag.CommandLine.Parse(os.Args[3:])
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		fail(err.Error())
	}
	store := &store{upstream: os.Args[2], buckets: map[string]*pair{}, counts: map[string]map[string]*count{}}
	store.random = rand.New(rand.NewSource(*seed))
	for {
		conn, err := listener.Accept()
		if err != nil {
			fail(err.Error())
		}
		go store.serve(conn.(*net.TCPConn))
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, "slowstore:", text)
	os.Exit(1)
}

// limit lets so many bytes a second pass, whoever asks.
type limit struct {
	rate float64
	lock sync.Mutex
	next time.Time
}

// wait returns when n bytes more may pass.
func (l *limit) wait(n int64) {
	if l.rate <= 0 {
		return
	}
	l.lock.Lock()
	now := time.Now()
	if oldest := now.Add(-burst); l.next.Before(oldest) {
		l.next = oldest
	}
	l.next = l.next.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	until := l.next
	l.lock.Unlock()
	time.Sleep(until.Sub(now))
}

// pair is the limits of the two directions.
type pair struct{ up, down limit }

func newPair(rate float64) *pair { return &pair{up: limit{rate: rate}, down: limit{rate: rate}} }

// pieceOf is how many bytes to move at a time under these limits.
func pieceOf(limits []*limit) int64 {
	piece := int64(pieceMax)
	for _, limit := range limits {
		if limit.rate > 0 {
			piece = min(piece, int64(limit.rate*pieceTime.Seconds()))
		}
	}
	return max(piece, pieceMin)
}

type count struct {
	Requests int64 `json:"requests"`
	Up       int64 `json:"up"`
	Down     int64 `json:"down"`
}

type store struct {
	upstream string
	lock     sync.Mutex
	buckets  map[string]*pair
	counts   map[string]map[string]*count
	random   *rand.Rand
}

// bucketOf is the first part of the path; in GCS's paths, the part after "b".
func bucketOf(path string) string {
	parts := strings.Split(strings.SplitN(strings.TrimPrefix(path, "/"), "?", 2)[0], "/")
	for n, part := range parts {
		if part == "b" && n+1 < len(parts) && (parts[0] == "storage" || parts[0] == "upload" || parts[0] == "download") {
			return parts[n+1]
		}
	}
	return parts[0]
}

// kind is a request's method, or what S3 has a price of its own for: LIST, and DELETE-MANY, which is a POST.
func kind(request *http.Request) string {
	path := strings.Trim(request.URL.Path, "/")
	switch {
	case request.Method == "GET" && !strings.Contains(path, "/"):
		return "LIST"
	case request.Method == "POST" && request.URL.Query().Has("delete"):
		return "DELETE-MANY"
	}
	return request.Method
}

// admit counts a request, and gives its bucket's limits and whether it is to fail.
func (s *store) admit(name, method string) (*pair, *count, bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.buckets[name] == nil {
		s.buckets[name] = newPair(*bucket)
	}
	if s.counts[name] == nil {
		s.counts[name] = map[string]*count{}
	}
	if s.counts[name][method] == nil {
		s.counts[name][method] = &count{}
	}
	counted := s.counts[name][method]
	counted.Requests++
	return s.buckets[name], counted, s.random.Float64() < *failRate
}

func (s *store) add(counted *count, up, down int64) {
	s.lock.Lock()
	counted.Up += up
	counted.Down += down
	s.lock.Unlock()
}

// serve handles one client's connection, with one of its own to the store behind.
func (s *store) serve(client *net.TCPConn) {
	defer client.Close()
	raw, err := net.Dial("tcp", s.upstream)
	if err != nil {
		return
	}
	upstream := raw.(*net.TCPConn)
	defer upstream.Close()
	fromClient, fromStore := bufio.NewReaderSize(client, header), bufio.NewReaderSize(upstream, header)
	own := newPair(*connection)
	for {
		request, err := http.ReadRequest(fromClient)
		if err != nil {
			return
		}
		if request.URL.Path == "/-/counts" {
			if !tell(client, "200 OK", "application/json", s.counted(request.Method)) {
				return
			}
			continue
		}
		name := bucketOf(request.RequestURI)
		limits, counted, failing := s.admit(name, kind(request))
		if strings.EqualFold(request.Header.Get("Expect"), "100-continue") {
			request.Header.Del("Expect")
			if _, err := io.WriteString(client, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return
			}
		}
		target := upstream
		if failing {
			target = nil
		} else if _, err := io.WriteString(upstream, headOfRequest(request)); err != nil {
			return
		}
		moved, err := move(target, fromClient, client, request.ContentLength, request.TransferEncoding, &own.up, &limits.up)
		s.add(counted, moved, 0)
		if err != nil {
			return
		}
		whole := time.Now()
		if failing {
			time.Sleep(*firstByte)
			if !tell(client, "503 Service Unavailable", "application/xml", []byte(slowDown)) {
				return
			}
			continue
		}
		answer, err := http.ReadResponse(fromStore, request)
		if err != nil {
			return
		}
		time.Sleep(*firstByte - time.Since(whole))
		if _, err := io.WriteString(client, headOfAnswer(answer)); err != nil {
			return
		}
		length := answer.ContentLength
		if request.Method == "HEAD" || answer.StatusCode == 204 || answer.StatusCode == 304 {
			length = 0
		}
		moved, err = move(client, fromStore, upstream, length, answer.TransferEncoding, &own.down, &limits.down)
		s.add(counted, 0, moved)
		if err != nil || request.Close || answer.Close || length < 0 && len(answer.TransferEncoding) == 0 {
			return
		}
	}
}

// counted is what was counted, in JSON; DELETE forgets it.
func (s *store) counted(method string) []byte {
	s.lock.Lock()
	defer s.lock.Unlock()
	if method == "DELETE" {
		s.counts = map[string]map[string]*count{}
	}
	body, _ := json.Marshal(s.counts)
	return body
}

// tell gives an answer of the proxy's own.
func tell(client *net.TCPConn, status, kind string, body []byte) bool {
	head := fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", status, kind, len(body))
	_, err := client.Write(append([]byte(head), body...))
	return err == nil
}

func headOfRequest(request *http.Request) string {
	var head strings.Builder
	if *host != "" {
		request.Host = *host
	}
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\n", request.Method, request.RequestURI, request.Host)
	// Go takes these two out of the headers.
	if len(request.TransferEncoding) > 0 {
		head.WriteString("Transfer-Encoding: chunked\r\n")
	}
	request.Header.Write(&head)
	head.WriteString("\r\n")
	return head.String()
}

func headOfAnswer(answer *http.Response) string {
	var head strings.Builder
	fmt.Fprintf(&head, "HTTP/1.1 %s\r\n", answer.Status)
	if len(answer.TransferEncoding) > 0 {
		head.WriteString("Transfer-Encoding: chunked\r\n")
	}
	answer.Header.Write(&head)
	head.WriteString("\r\n")
	return head.String()
}

// move passes a body on within both limits and gives its bytes. Nobody gets them where `to` is nil. A length of -1
// without chunks is a body that ends with its connection.
func move(
	to *net.TCPConn, buffered *bufio.Reader, from *net.TCPConn, length int64, encoding []string, limits ...*limit,
) (int64, error) {
	if len(encoding) > 0 {
		return moveChunks(to, buffered, from, limits)
	}
	piece := pieceOf(limits)
	var moved int64
	for length < 0 || moved < length {
		n := piece
		if length >= 0 && length-moved < n {
			n = length - moved
		}
		if held := int64(buffered.Buffered()); held > 0 && held < n {
			n = held
		}
		for _, limit := range limits {
			limit.wait(n)
		}
		var err error
		var passed int64
		switch {
		case to == nil:
			passed, err = io.CopyN(io.Discard, buffered, n)
		case buffered.Buffered() > 0:
			passed, err = io.CopyN(to, buffered, n)
		default:
			// Both ends are sockets and nothing lies in between: the kernel moves it.
			passed, err = to.ReadFrom(io.LimitReader(from, n))
			if err == nil && passed < n {
				err = io.EOF
			}
		}
		moved += passed
		if err == io.EOF && length < 0 {
			return moved, nil
		}
		if err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// moveChunks passes on a body that is sent in chunks, as it is.
func moveChunks(to *net.TCPConn, buffered *bufio.Reader, from *net.TCPConn, limits []*limit) (int64, error) {
	var total int64
	for {
		line, err := buffered.ReadString('\n')
		if err != nil {
			return total, err
		}
		size, err := strconv.ParseInt(strings.TrimSpace(strings.SplitN(line, ";", 2)[0]), 16, 64)
		if err != nil {
			return total, err
		}
		if to != nil {
			if _, err := io.WriteString(to, line); err != nil {
				return total, err
			}
		}
		if size > 0 {
			moved, err := move(to, buffered, from, size, nil, limits...)
			total += moved
			if err != nil {
				return total, err
			}
		}
		// The end of the chunk; after the last one, trailers to an empty line.
		for {
			line, err := buffered.ReadString('\n')
			if err != nil {
				return total, err
			}
			if to != nil {
				if _, err := io.WriteString(to, line); err != nil {
					return total, err
				}
			}
			if size > 0 || strings.TrimSpace(line) == "" {
				break
			}
		}
		if size == 0 {
			return total, nil
		}
	}
}
