// Replace this file: the server restarts when anything in /app changes.
const http = require('http');

http.createServer((request, response) => {
  response.setHeader('Content-Type', 'text/plain');
  response.end('Ready for your code: put a server.js into /app that listens on $PORT.\n');
}).listen(process.env.PORT, () => console.log(`listening on port ${process.env.PORT}`));
