// The program in the image: it writes its page when the image is built, and serves it.
package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fail("want a verb and a file", nil)
	}
	file := os.Args[2]
	switch os.Args[1] {
	case "write":
		text := fmt.Sprintf("hello from dockerfile, %s, built as %d", os.Getenv("GREETING"), os.Getuid())
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			fail("write", err)
		}
		fmt.Println("wrote", text)
	case "serve":
		serve(file)
	}
}

func serve(file string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		fail("read", err)
	}
	dir, err := os.Getwd()
	if err != nil {
		fail("working directory", err)
	}
	_, ignored := os.Stat("/context/server")
	_, guest := os.Stat("/usr/lib/berth")
	page := fmt.Sprintf("%s, run as %d in %s, %s, %t %t", raw, os.Getuid(), dir, os.Getenv("FROM_IMAGE"), os.IsNotExist(ignored), os.IsNotExist(guest))
	// What many images log to.
	log, err := os.OpenFile("/dev/stdout", os.O_WRONLY, 0)
	if err != nil {
		fail("log", err)
	}
	fmt.Fprintln(log, "serving as", os.Getuid())
	http.HandleFunc("/exit", func(http.ResponseWriter, *http.Request) { os.Exit(3) })
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) })
	fail("serve", http.ListenAndServe(os.Getenv("HOST")+":"+os.Getenv("PORT"), nil))
}

func fail(what string, err error) {
	fmt.Fprintln(os.Stderr, what, err)
	os.Exit(1)
}
