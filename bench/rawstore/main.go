// Rawstore moves objects to and from an S3 server as fast as a plain client can: the yardstick for Tarn's rows in
// the benchmark. It knows nothing of Tarn and uses Go's standard library alone.
//
//	rawstore get ENDPOINT CONNECTIONS < keys     reads the objects named on standard input ("bucket/key<TAB>size" a line)
//	rawstore put ENDPOINT CONNECTIONS OBJECTS SIZE BUCKET...
//	                                             writes OBJECTS objects of SIZE bytes, spread over the buckets
//
// It prints bytes and seconds. Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
package main

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	region   = "us-east-1"
	unsigned = "UNSIGNED-PAYLOAD"
	buffer   = 1 << 20
)

func main() {
	if len(os.Args) < 4 {
		fail("usage: rawstore get|put ENDPOINT CONNECTIONS ...")
	}
	connections, err := strconv.Atoi(os.Args[3])
	if err != nil || connections < 1 {
		fail("the number of connections is " + os.Args[3])
	}
	client := newClient(os.Args[2], connections)
	switch os.Args[1] {
	case "get":
		var keys []string
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			keys = append(keys, strings.SplitN(lines.Text(), "\t", 2)[0])
		}
		report(client.each(keys, client.get))
	case "put":
		objects, _ := strconv.Atoi(os.Args[4])
		size, _ := strconv.Atoi(os.Args[5])
		body := make([]byte, size)
		if _, err := rand.Read(body); err != nil {
			fail(err.Error())
		}
		var keys []string
		for n := 0; n < objects; n++ {
			keys = append(keys, fmt.Sprintf("%s/raw/%02x/object-%d", os.Args[6+n%(len(os.Args)-6)], n%256, n))
		}
		report(client.each(keys, func(key string, _ []byte) (int64, error) { return client.put(key, body) }))
	default:
		fail("unknown command " + os.Args[1])
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, "rawstore:", text)
	os.Exit(1)
}

func report(total int64, seconds float64) {
	fmt.Printf("%d %.6f\n", total, seconds)
}

type client struct {
	endpoint, access, secret string
	connections              int
	http                     *http.Client
}

func newClient(endpoint string, connections int) *client {
	transport := &http.Transport{
		MaxIdleConnsPerHost: connections,
		MaxConnsPerHost:     connections,
		ReadBufferSize:      buffer,
		WriteBufferSize:     buffer,
		DisableCompression:  true,
	}
	return &client{
		endpoint:    endpoint,
		access:      os.Getenv("AWS_ACCESS_KEY_ID"),
		secret:      os.Getenv("AWS_SECRET_ACCESS_KEY"),
		connections: connections,
		http:        &http.Client{Transport: transport},
	}
}

// each runs one request for every key, `connections` at a time, and gives bytes and seconds.
func (c *client) each(keys []string, one func(string, []byte) (int64, error)) (int64, float64) {
	work := make(chan string, len(keys))
	for _, key := range keys {
		work <- key
	}
	close(work)
	var total int64
	var lock sync.Mutex
	var group sync.WaitGroup
	start := time.Now()
	for n := 0; n < c.connections; n++ {
		group.Add(1)
		go func() {
			defer group.Done()
			room := make([]byte, buffer)
			var mine int64
			for key := range work {
				moved, err := one(key, room)
				if err != nil {
					fail(key + ": " + err.Error())
				}
				mine += moved
			}
			lock.Lock()
			total += mine
			lock.Unlock()
		}()
	}
	group.Wait()
	return total, time.Since(start).Seconds()
}

func (c *client) get(key string, room []byte) (int64, error) {
	reply, err := c.do("GET", key, nil)
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	// Not io.Discard: its own buffers are small.
	return io.CopyBuffer(onlyWriter{}, reply.Body, room)
}

func (c *client) put(key string, body []byte) (int64, error) {
	reply, err := c.do("PUT", key, body)
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	_, err = io.Copy(io.Discard, reply.Body)
	return int64(len(body)), err
}

// onlyWriter takes what it is given; being no io.ReaderFrom, it leaves the buffer to the caller.
type onlyWriter struct{}

func (onlyWriter) Write(p []byte) (int, error) { return len(p), nil }

// do sends one request, signed by AWS Signature Version 4.
func (c *client) do(method, key string, body []byte) (*http.Response, error) {
	request, err := http.NewRequest(method, c.endpoint+"/"+key, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC().Format("20060102T150405Z")
	day := now[:8]
	scope := day + "/" + region + "/s3/aws4_request"
	request.Header.Set("x-amz-date", now)
	request.Header.Set("x-amz-content-sha256", unsigned)
	headers := "host:" + request.URL.Host + "\nx-amz-content-sha256:" + unsigned + "\nx-amz-date:" + now + "\n"
	names := "host;x-amz-content-sha256;x-amz-date"
	canonical := method + "\n" + request.URL.EscapedPath() + "\n\n" + headers + "\n" + names + "\n" + unsigned
	hash := sha256.Sum256([]byte(canonical))
	text := "AWS4-HMAC-SHA256\n" + now + "\n" + scope + "\n" + hex.EncodeToString(hash[:])
	sign := []byte("AWS4" + c.secret)
	for _, part := range []string{day, region, "s3", "aws4_request", text} {
		mac := hmac.New(sha256.New, sign)
		mac.Write([]byte(part))
		sign = mac.Sum(nil)
	}
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+c.access+"/"+scope+
		",SignedHeaders="+names+",Signature="+hex.EncodeToString(sign))
	reply, err := c.http.Do(request)
	if err == nil && reply.StatusCode/100 != 2 {
		text, _ := io.ReadAll(reply.Body)
		reply.Body.Close()
		return nil, fmt.Errorf("%s: %s", reply.Status, text)
	}
	return reply, err
}
