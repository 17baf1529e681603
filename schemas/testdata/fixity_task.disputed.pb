
 6c1f0e8a5b3d42979f2e7a4c8d1b0e35acme2"photos*2020/film.mov08B 071ba70d8be53a69376b61d69bcd15f8bA
?'
md5 d41d8cd98f00b204e9800998ecf8427e:ßô‡œÄ— p†j÷ö‡œ¿¡¿