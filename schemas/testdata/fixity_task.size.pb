
 37dc22e01999939fcc48e92ec97d1f54acme2"photos*2020/film.mov08B 071ba70d8be53a69376b61d69bcd15f8jÖšàÏÀÁÀ€€€€€€ 